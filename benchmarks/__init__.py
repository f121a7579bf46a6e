"""Side by side with peers, run by hand or ``make bench``; never part of the tests."""
