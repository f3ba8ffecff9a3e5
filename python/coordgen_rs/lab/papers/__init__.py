"""Every equation, algorithm, table and figure of the three papers, with figures of ours beside."""
