"""Block loads: profiles of a device, plans of the switches."""
