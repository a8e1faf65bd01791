"""What is calibrated once per target."""
