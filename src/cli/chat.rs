//! `chat render` and `chat parse`.

use super::args::{ParseArgs, RenderArgs};
use super::failure::Failure;

pub(super) fn render(_args: &RenderArgs) -> Result<(), Failure> {
    Ok(())
}

pub(super) fn parse(_args: &ParseArgs) -> Result<(), Failure> {
    Ok(())
}
