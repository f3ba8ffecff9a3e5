"""Many measurements that do not depend on each other, in one table that can be gone on with."""
