#!/bin/sh
# What the tests of pages need and the project does not have: a Chromium, and axe-core in .cache/axe.min.js.
# Without them those tests are skipped. So whatever cannot be had here is said, and is no error.
AXE=4.14.1
cd "$(dirname "$0")/.." || exit 0

chromium() { [ -n "$MAPL_CHROMIUM" ] || command -v chromium || command -v google-chrome; }
if ! chromium >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  install="apt-get install -qq -y --no-install-recommends chromium"
  { timeout 120 $install || { timeout 120 apt-get update -qq && timeout 120 $install; }; } >/dev/null 2>&1
fi
chromium >/dev/null || echo "no Chromium: the tests of pages are skipped"

if [ ! -f .cache/axe.min.js ] && [ -z "$MAPL_AXE" ] && command -v npm >/dev/null; then
  mkdir -p .cache
  (cd .cache && timeout 60 npm pack --silent "axe-core@$AXE" && tar -xzf "axe-core-$AXE.tgz" package/axe.min.js &&
    mv package/axe.min.js . && rm -rf package "axe-core-$AXE.tgz") >/dev/null 2>&1
fi
[ -n "$MAPL_AXE" ] || [ -f .cache/axe.min.js ] || echo "no axe-core: the tests that need it are skipped"
exit 0
