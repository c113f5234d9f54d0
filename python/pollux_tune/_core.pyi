"""What is written in Rust. Users call what `pollux_tune` exports."""

VERSION: str
