"""`python -m clipset.cli` is `clipset`."""

from clipset.cli import main

main()
