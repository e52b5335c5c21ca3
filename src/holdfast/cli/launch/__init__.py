"""What 'holdfast run' does once its options are checked."""
