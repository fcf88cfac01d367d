"""The queue of a machine: tickets, slots, the dispatcher."""
