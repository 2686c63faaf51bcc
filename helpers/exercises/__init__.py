"""What the checks compare with, by notebook; `parts` holds what the exercises are made of."""
