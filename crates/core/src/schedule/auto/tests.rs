use super::super::toy;

#[test]
fn golden_trace() {
    toy::golden("auto", super::super::SchedulerKind::Auto);
}
