"""Job queue of a machine: tickets, slots and the dispatcher."""
