"""The raw results of `benchmarks/`, as types with their readers: one module for each kind of
figure. They lie here and not beside the scripts because `galahad report --with` reads them too.
"""
