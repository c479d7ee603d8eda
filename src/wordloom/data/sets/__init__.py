"""Named public data sets: what they are, where they come from, how to fetch them."""
