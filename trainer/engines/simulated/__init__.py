"""A simulated cluster: events of a training step played over streams, links and hosts; no process is started."""
