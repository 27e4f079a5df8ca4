"""Scaling laws of dual encoders (ScalingNote, Sec. 4.4): what is swept, how it is measured, and what is fitted."""
