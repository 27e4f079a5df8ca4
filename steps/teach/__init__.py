"""Stage `teach`: the teacher, a dual encoder trained on mined triplets."""
