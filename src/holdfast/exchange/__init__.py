"""How gradients become parameters: shared boards, lane slots, slices and the optimizer on them."""
