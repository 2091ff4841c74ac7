# Run by cases of the tool script.
echo "$GREETING, $1"
exit "$2"
