"""HTML that notebooks show: cards of plans and results, the bar of a run, and pages of them."""
