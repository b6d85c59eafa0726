"""What people see: tables on a terminal, HTML pages, traces for a viewer."""
