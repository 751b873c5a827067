"""Pages that open anywhere: one file each, nothing fetched. What the report, `estimate` and `plan` share."""
