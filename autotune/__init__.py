"""The product's face: the command line, the loop, the judge, the journal, the report and the export."""
