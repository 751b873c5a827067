"""What every face shares: figures and names as people read them, bars, tables, and pages that open anywhere."""
