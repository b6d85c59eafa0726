"""`sundog validate`: what the simulator predicts beside what real servers did."""
