"""Datasets of xarray: one run writes all variables, as the arrays that xarray would write."""
