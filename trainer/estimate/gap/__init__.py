"""The gap between a measured step and an attainable one, divided into settings, work, links, routing and software."""
