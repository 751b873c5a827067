"""What was measured of links and software and holds for an estimate and a simulation alike: tables, no formulas."""
