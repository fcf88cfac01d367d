"""Files of web addresses that runs read."""
