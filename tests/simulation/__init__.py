"""A simulation of everything that can go wrong: schedules generated from seeds, checked against small models.

python3 -m tests.simulation 4711          # replay a failed seed with all its operations
python3 -m tests.simulation 0-9999        # run many seeds
python3 -m tests.simulation defects       # the seed that finds each defect seeded into a copy of the package
python3 -m tests.simulation --help        # also how to measure the coverage
"""
