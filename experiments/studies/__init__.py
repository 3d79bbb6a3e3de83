"""Studies in worlds that can be solved: how good the estimators are, and what they teach a small policy."""
