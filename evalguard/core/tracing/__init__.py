"""Where error is introduced: sums over activations, floors of benign twins, ratios, suspects."""
