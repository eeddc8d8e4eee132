//! The sandbox from outside: it starts, runs, limits and leaves nothing behind.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use backsight::agent::sandbox::{Command, Exit, Limits, SandboxConfig, Sandboxes};

fn sandboxes(limits: Limits) -> Sandboxes {
    let init = Some(PathBuf::from(env!("CARGO_BIN_EXE_backsight")));
    Sandboxes::new(SandboxConfig { init, limits, ..SandboxConfig::default() })
}

async fn output(line: &str) -> (Exit, String) {
    let sandbox = sandboxes(Limits::default()).start().await.unwrap_or_else(|error| panic!("{error}"));
    let output = sandbox.run(Command::shell(line)).await.unwrap();
    (output.exit, output.capture.text())
}

#[tokio::test]
async fn hello() {
    let (exit, text) = output("id; pwd; env; ls -la / /dev /workspace /proc/self/fd; cat /proc/self/status | grep -E 'Cap|NoNew|Seccomp|Threads'; ps aux; python3 --version; python --version; ls /root /root/.pyenv; cat /proc/mounts; ip a").await;
    panic!("{exit:?}\n{text}");
}

#[tokio::test]
async fn latency() {
    let s = sandboxes(Limits::default());
    drop(s.start().await.unwrap());
    for _ in 0..20 {
        let t = Instant::now();
        std::process::Command::new("sh").args(["-c", "true"]).status().unwrap();
        let plain = t.elapsed();
        let t = Instant::now();
        let b = s.start().await.unwrap();
        let start = t.elapsed();
        let t = Instant::now();
        b.run(Command::argv(["/bin/sh", "-c", "true"])).await.unwrap();
        let run = t.elapsed();
        let t = Instant::now();
        b.stop().await;
        eprintln!("plain {plain:?} start {start:?} run {run:?} stop {:?}", t.elapsed());
        tokio::time::sleep(Duration::from_millis(std::env::var("PAUSE").map_or(0, |it| it.parse().unwrap())))
            .await;
    }
}
