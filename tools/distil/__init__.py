"""Tables of measured kernels, distilled from published measurements into `sim/cost/tables/data`."""
