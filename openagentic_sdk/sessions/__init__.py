"""Where events live, and pure folds over them."""
