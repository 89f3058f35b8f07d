"""Find files and lines: patterns, trees, `.gitignore`, and searches that can be stopped."""
