"""Stage `rank`: a cross encoder trained on mined triplets, and its scores of training queries to mine from."""
