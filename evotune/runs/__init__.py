"""Runs: joins the packages that search, compile, check, time and store into one run."""
