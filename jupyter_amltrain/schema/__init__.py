"""What goes down (jobs, targets) and what comes up (runs): frozen data, no behaviour."""
