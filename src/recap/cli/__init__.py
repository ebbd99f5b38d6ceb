"""The command line: parse, call the public function, print."""
