#!/bin/sh
# What Bazel may write into a build: the commit, and whether the tree differs from it. Both depend
# on the source alone, so that two clones of one commit give the same wheel.
commit=$(git rev-parse HEAD 2>/dev/null) || exit 0
[ -z "$(git status --porcelain 2>/dev/null)" ] || commit=$commit-changed
echo "STABLE_COMMIT $commit"
