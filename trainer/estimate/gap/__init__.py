"""The gap between a measured step and an attainable one: settings, work, links, routing, software."""
