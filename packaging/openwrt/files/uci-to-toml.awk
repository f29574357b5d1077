# Turns what `uci export ropewalk` prints into a configuration in TOML.
#
# The section `config gateway` has the top-level keys. Its options enabled, role and config_file are for the init script.
# A section of type uplink, class or rule becomes one of an array of tables. Any other type is the name of a table.
# A list becomes an array of texts. An option of digits becomes a number, `quota_gb` also with a point, true and false stay, and the rest is text.
# Keys that are true or false take what UCI has for them: 1, on, yes, enabled and 0, off, no, disabled.
# Ropewalk itself refuses unknown keys and bad values.

BEGIN {
	quote = sprintf("%c", 39)
	split("accelerate compress_headers forward kill_switch masquerade metered offload standby strict tcp_fallback", names, " ")
	for (i in names) boolean[names[i]] = 1
	split("name key endpoint interface public via match source destination", names, " ")
	for (i in names) text[names[i]] = 1
	top = ""
	body = ""
	section = ""
}

function die(what) {
	print "ropewalk: /etc/config/ropewalk: " what > "/dev/stderr"
	failed = 1
	exit 1
}

# The word at the beginning of `rest`, without its quotes; the rest of the line stays in `rest`.
function word(    out, at) {
	sub(/^[ \t]+/, "", rest)
	out = ""
	while (rest != "" && rest !~ /^[ \t]/) {
		if (substr(rest, 1, 1) == quote) {
			rest = substr(rest, 2)
			at = index(rest, quote)
			if (!at) die("a value that goes over several lines is no value of Ropewalk: " rest)
			out = out substr(rest, 1, at - 1)
			rest = substr(rest, at + 1)
		} else if (substr(rest, 1, 1) == "\\") {
			out = out substr(rest, 2, 1)
			rest = substr(rest, 3)
		} else {
			out = out substr(rest, 1, 1)
			rest = substr(rest, 2)
		}
	}
	return out
}

function quoted(value,    out, i, c) {
	out = ""
	for (i = 1; i <= length(value); i++) {
		c = substr(value, i, 1)
		if (c == "\\" || c == "\"") c = "\\" c
		out = out c
	}
	return "\"" out "\""
}

function scalar(key, value) {
	if (key in boolean || value == "true" || value == "false") {
		if (value ~ /^(1|on|yes|true|enabled)$/) return "true"
		if (value ~ /^(0|off|no|false|disabled)$/) return "false"
		die(section "." key " is \"" value "\"; write 1 or 0")
	}
	if (value ~ /^[0-9]+$/ && !(key in text)) {
		# TOML has no zeros ahead.
		sub(/^0+/, "", value)
		return value == "" ? "0" : value
	}
	if (key == "quota_gb" && value ~ /^(0|[1-9][0-9]*)\.[0-9]+$/) return value
	return quoted(value)
}

function put(line) {
	if (section == "gateway") top = top line "\n"
	else body = body line "\n"
}

# Arrays are written when the next thing comes: UCI has an item a line.
function flush_list() {
	if (list != "") put(list " = [" items "]")
	list = ""
	items = ""
}

{
	rest = $0
	kind = word()
}

kind == "package" || kind == "" { next }

kind == "config" {
	flush_list()
	section = word()
	if (section !~ /^[a-z_]+$/) die("the section type \"" section "\" is no table of Ropewalk")
	if (section == "gateway") {
		if (gateways++) die("there are two sections \"gateway\"; keep one")
	} else if (section ~ /^(uplink|class|rule)$/) {
		body = body "\n[[" section "]]\n"
	} else {
		if (section in seen) die("there are two sections \"" section "\"; keep one")
		seen[section] = 1
		body = body "\n[" section "]\n"
	}
	next
}

kind == "option" || kind == "list" {
	key = word()
	value = word()
	if (section == "") die("\"" key "\" stands before the first section")
	if (key !~ /^[a-z0-9_]+$/) die("the name \"" key "\" is none of Ropewalk")
	if (kind == "list") {
		if (key != list) {
			flush_list()
			list = key
		}
		items = items (items == "" ? "" : ", ") quoted(value)
		next
	}
	flush_list()
	if (section == "gateway" && key ~ /^(enabled|role|config_file)$/) next
	put(key " = " scalar(key, value))
	next
}

{ die("line " NR " is none of UCI: " $0) }

END {
	if (failed) exit 1
	flush_list()
	printf "# From /etc/config/ropewalk: changes belong there.\n%s%s", top, body
}
