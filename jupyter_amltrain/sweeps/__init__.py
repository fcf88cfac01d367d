"""Sweeps on targets that have no sweeps of their own: sampler, policies, driver."""
