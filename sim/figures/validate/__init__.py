"""`sundog validate`: what the simulator predicts, compared with what real servers did."""
