"""One simulation of everything that can go wrong: schedules by seed, checked against small models.

python3 -m tests.simulation 4711          # replay a seed that failed, with all that was done
python3 -m tests.simulation 0-9999        # many of them
python3 -m tests.simulation defects       # which seed finds each of the defects that are sown into a copy of the package
python3 -m tests.simulation --help        # also how to measure what they cover
"""
