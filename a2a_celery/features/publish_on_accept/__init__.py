"""Publication of a run by the script that accepts its message, if broker and store are one Redis process."""
