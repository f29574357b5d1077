#!/usr/bin/env bash
# Builds an rpm package of static programs: packaging/rpm.sh PROGRAMS RUNNABLE ARCHITECTURE OUTPUT-DIRECTORY
#
# RUNNABLE has the same programs for this machine. Needs rpmbuild. Equal programs and an equal SOURCE_DATE_EPOCH give an
# equal package. VERSION is another version than that of the sources, to try an upgrade with.
set -euo pipefail
cd "$(dirname "$0")/.."

built=$(realpath -e "${1:?usage: packaging/rpm.sh PROGRAMS RUNNABLE ARCHITECTURE OUTPUT-DIRECTORY}")
runnable=$(realpath -e "$2")
architecture=$3
output=$(realpath -m "$4")
version=${VERSION:-$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)}
if ! command -v rpmbuild >/dev/null; then
	echo "rpm.sh: rpmbuild is missing; install the package rpm (Debian) or rpm-build (Fedora)" >&2
	exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
UNITS=usr/lib/systemd/system packaging/tree.sh "$work/tree" "$built" "$runnable"
# zsh and fish look there in Fedora.
install -d "$work/tree/usr/share/zsh/site-functions"
mv "$work/tree/usr/share/zsh/vendor-completions/_ropewalk" "$work/tree/usr/share/zsh/site-functions/"
rmdir "$work/tree/usr/share/zsh/vendor-completions"
mkdir "$work/out"
rpmbuild -bb --quiet --target "$architecture-linux" \
	--define "_topdir $work/rpm" --define "_rpmdir $work/out" --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
	--define "ropewalk_version $version" --define "ropewalk_tree $work/tree" \
	--define "_buildhost ropewalk" --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" \
	packaging/ropewalk.spec >&2
mkdir -p "$output"
cp "$work"/out/*.rpm "$output/"
