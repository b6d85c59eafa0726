"""`sundog validate`: predictions compared with measurements of real servers."""
