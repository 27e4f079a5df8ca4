"""Tables of distilled students: what is expected of each, how it is measured, and what is concluded."""
